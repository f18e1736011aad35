"""Human evaluation of INSCIT's systems: who rates what, what they said, and what follows."""
