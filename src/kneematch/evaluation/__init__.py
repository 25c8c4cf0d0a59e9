"""How good it is: tables, figures and ground truth."""
