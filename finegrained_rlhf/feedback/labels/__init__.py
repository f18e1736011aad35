"""Labels that follow from marked spans."""
