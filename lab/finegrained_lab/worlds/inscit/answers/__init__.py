"""What is true of answers to turns of an InscitWorld: measured, and as a reward."""
