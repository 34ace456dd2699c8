"""What is asked of the machine: its clock, files and commands with secrets, compiled parts."""
