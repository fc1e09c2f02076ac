# The prompt of every terminal: short, and the same in every desktop.
PS1='\w $ '
