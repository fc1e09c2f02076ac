"""Tables on the terminal."""

from arpo.display.tables import print_result, print_table
from arpo.envs.fake import fake_tasks
from arpo.evaluation.scores import evaluate as score
from tests.rollout.trajectories import make_trajectory


def test_the_table_has_a_row_a_domain_and_pass_at_k(capsys):
    tasks = fake_tasks(2)
    trajectories = [
        make_trajectory(f"eval-0/{number}/{member}", task_id=task.id, domain=task.domain, task_reward=float(member))
        for number, task in enumerate(tasks)
        for member in range(2)
    ]
    print_result(score(trajectories, tasks, name="held_out", success_threshold=0.5, lost=0))
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("held_out", "fake-click", "fake-sequence", "50.0 %", "pass@2 100.0 %"))


def test_brackets_in_a_table_are_no_markup(capsys):
    print_table([("[a]", "b"), ("1", "[/c]")], title="[/d]", caption="[red]e")
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("[a]", "[/c]", "[/d]", "[red]e"))


def test_a_table_that_goes_to_a_file_is_as_wide_as_its_words_and_one_on_a_terminal_no_wider(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    words = "word " * 60
    print_table([("a", "b"), (words, "1")], title="c", caption="d")
    assert words.strip() in capsys.readouterr().out
    with monkeypatch.context() as terminal:
        terminal.setenv("FORCE_COLOR", "1")
        print_table([("a", "b"), (words, "1")], title="c", caption="d")
        assert words.strip() not in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "40")
    print_table([("a", "b"), (words, "1")], title="c", caption="d")
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40
