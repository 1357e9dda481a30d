"""Programs: tensor code of each framework, captured at the call; one file each."""
