"""OSWorld's tasks, and the parts of their files that run here: set-up steps, metric functions and getters, by name.

A task that asks for anything else is known before a machine starts, and by its file and key.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from arpo.envs.guest import tasks as files
from arpo.envs.guest.tasks import Obstacle, as_list, load_task
from arpo.envs.osworld.setup import OSWorldSetup
from arpo.errors import ConfigError, TaskFormatError
from arpo.types import Task

log = logging.getLogger(__name__)

CLONE = "https://github.com/FanbinLu/OSWorld at commit 7a6409d"
"""What ARPO's published code uses; a newer OSWorld names metric functions that are not in the lists below."""

_FUNCTIONS = """
    check_accessibility_tree check_auto_saving_time check_brightness_decrease_and_structure_sim check_config_status
    check_contrast_increase_and_structure_sim check_csv check_direct_json_object check_enabled_experiments
    check_file_exists check_file_exists_and_structure_sim check_font_size check_global_key_play_pause
    check_gnome_favorite_apps check_green_background check_highlighted_words check_history_deleted
    check_html_background_image check_image_file_size check_image_mirror check_image_size
    check_image_stretch_and_center check_include_exclude check_italic_font_size_14 check_json check_json_keybindings
    check_json_settings check_left_panel check_libre_locale check_line_number check_list check_moved_jpgs
    check_mp3_meta check_no_duplicates check_one_instance_when_started_from_file check_page_number_colors
    check_palette_and_structure_sim check_pdf_pages check_presenter_console_disable check_python_file_by_gold_file
    check_python_file_by_test_suite check_qt_bgcone check_qt_max_volume check_qt_minimal_view
    check_qt_slider_colours check_saturation_increase_and_structure_sim check_sharper check_slide_numbers_color
    check_slide_orientation_Portrait check_strikethrough check_structure_sim check_structure_sim_resized
    check_tabstops check_text_enlarged check_textbox_on_leftside check_thunderbird_filter check_thunderbird_folder
    check_thunderbird_prefs check_transition check_triangle_position compare_answer compare_archive compare_audios
    compare_conference_city_in_order compare_config compare_contains_image compare_csv compare_docx_files
    compare_docx_files_and_ignore_new_lines compare_docx_images compare_docx_lines compare_docx_tables compare_epub
    compare_font_names compare_highlighted_text compare_htmls compare_image_list compare_images compare_init_lines
    compare_insert_equation compare_line_spacing compare_pdf_images compare_pdfs compare_pptx_files
    compare_python_pure_text compare_references compare_result_files compare_subscript_contains compare_table
    compare_terminal_and_txt compare_text_file compare_time_in_speedtest_results compare_triangle_positions
    compare_unique_train_records compare_videos compare_zip_files contains_page_break decrease_brightness
    diff_text_file evaluate_alignment evaluate_colored_words_in_tables evaluate_conversion
    evaluate_presentation_fill_to_rgb_distance evaluate_spacing evaluate_strike_through_last_paragraph exact_match
    file_contains find_default_font fuzzy_match fuzzy_place_math get_unique_train_ids has_page_numbers_in_footers
    increase_saturation infeasible is_added_to_steam_cart is_cookie_deleted is_expected_active_tab
    is_expected_active_tab_approximate is_expected_bookmarks is_expected_installed_extensions
    is_expected_search_query is_expected_tabs is_expected_url_pattern_match is_extension_installed
    is_first_line_centered is_gold_text_included_in_pdf is_in_list is_in_vm_clickboard is_included_all_json_objects
    is_shortcut_on_desktop is_utc_0 is_vlc_fullscreen is_vlc_playing is_vlc_recordings_folder literal_match
    match_in_list run_sqlite3
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
"""Metric functions of `desktop-env` that the packages of `requirements/osworld.txt` can run."""

_GETTERS = """
    accessibility_tree active_tab_html_parse active_tab_info active_tab_url_parse active_url_from_accessTree
    audio_in_slide background_image_in_slide bookmarks cache_file chrome_font_size chrome_language cloud_file
    conference_city_in_order content_from_vm_file cookie_data data_delete_automacally default_search_engine
    default_video_player enable_do_not_track enable_enhanced_safety_browsing enable_safe_browsing
    enabled_experiments find_installed_extension_name find_unpacked_extension_path gimp_config_file
    gotoRecreationPage_and_get_html_content history info_from_website list_directory macys_product_url_parse
    new_startup_page number_of_search_results open_tabs_info page_info pdf_from_url profile_name replay rule
    rule_relativeTime shortcuts_on_desktop time_diff_range url_dashPart url_path_parse vlc_config vlc_playing_info
    vm_command_error vm_command_line vm_file vm_screen_size vm_terminal_output vm_wallpaper vm_window_size
    vscode_config
"""
GETTERS = frozenset(_GETTERS.split())
"""Getters of `desktop-env` that the packages of `requirements/osworld.txt` can run."""

NOT_SUPPORTED: Mapping[str, str] = {
    **files.NOT_SUPPORTED,
    "googledrive_file": "it needs a Google account",
    "compare_image_text": "it reads text in pictures with a neural network of its own (easyocr)",
}
"""All that OSWorld has and we leave out, with the reason."""


def osworld_tasks(
    root: str | Path | None, ids: Mapping[str, Sequence[str]], *, skip_unsupported: bool = False
) -> list[Task]:
    """Load tasks by domain and id from OSWorld's `evaluation_examples` folder.

    Args:
        root: The folder.
        ids: File names by domain.
        skip_unsupported: Leave out, and name in the log, tasks that need what we do not have, such as an account.
    """
    tasks, refused = [], []
    for task in read_tasks(root, ids):
        path = Path(str(root)) / "examples" / task.domain / f"{task.id}.json"
        try:
            found = obstacles(task.config)
        except TaskFormatError as error:
            raise TaskFormatError(f"{path}: {error}") from error
        refused += [f"{path}: {obstacle}" for obstacle in found]
        if not found:
            tasks.append(task)
    if refused and not skip_unsupported:
        lines = "\n".join(f"  - {line}" for line in refused)
        raise TaskFormatError(
            f"these task files cannot run here:\n{lines}\nTake them from the list, or set skip_unsupported of the list"
        )
    for line in refused:
        log.warning("left out: %s", line)
    return tasks


def read_tasks(root: str | Path | None, ids: Mapping[str, Sequence[str]]) -> list[Task]:
    """Read tasks, also those that cannot run here; arguments and errors are those of `osworld_tasks`."""
    if root is None or not Path(root).is_dir():
        nowhere = "nobody says where OSWorld's task files are (paths.osworld)"
        trouble = nowhere if root is None else f"OSWorld's task files are not at {root}"
        remedy = "and set ARPO_OSWORLD_TASKS (or paths.osworld) to its evaluation_examples folder"
        raise ConfigError(f"{trouble}: clone {CLONE} {remedy}")
    return [load_task(root, domain, name) for domain, names in ids.items() for name in names]


def obstacles(record: Mapping[str, Any]) -> list[Obstacle]:
    """Return everything in a task file that cannot run here, in the order of the file."""
    evaluator = record["evaluator"]
    found = list(files.step_obstacles(record, OSWorldSetup.STEPS))
    names = evaluator.get("func")
    if not isinstance(names, str | list) or not names:
        raise TaskFormatError(f"key 'evaluator.func' must be a name or a list of names, got {names!r}")
    found += _name_obstacles("evaluator.func", as_list(names), FUNCTIONS)
    for key in ("result", "expected"):
        found += _name_obstacles(f"evaluator.{key}.type", _getter_types(key, evaluator), GETTERS)
    return found


def _getter_types(key: str, evaluator: Mapping[str, Any]) -> list[str]:
    getters = [getter for getter in as_list(evaluator.get(key)) if getter]
    for getter in getters:
        if not isinstance(getter, Mapping) or not isinstance(getter.get("type"), str):
            raise TaskFormatError(f"key 'evaluator.{key}' must be a getter with a type, got {getter!r}")
    return [getter["type"] for getter in getters]


def _name_obstacles(key: str, names: list[str], known: frozenset[str]) -> Iterator[Obstacle]:
    for name in names:
        if name not in known:
            yield Obstacle(key, name, NOT_SUPPORTED.get(name, f"it is not known here, which reads {CLONE}"))
