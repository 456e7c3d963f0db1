"""What a person looks at when the work is done."""
