"""What a resumed run has of the run that was interrupted, here and in other libraries."""
