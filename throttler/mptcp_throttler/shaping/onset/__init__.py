"""How caps begin on subflows that are sending, and what their sockets are given meanwhile and after."""
