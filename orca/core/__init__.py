"""The ground floor: facts about the machine, arguments, pickling and temporary folders. Imports nothing above."""
