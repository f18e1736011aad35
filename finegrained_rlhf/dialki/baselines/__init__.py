"""What DIALKI is compared with (thesis, section 3.3.3): BERTQA. Multi-Sentence is DIALKI on records cut in `units`."""
