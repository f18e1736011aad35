"""What people's marks, corrections and preferences say of an answer: labels of segments, and ordered pairs."""
