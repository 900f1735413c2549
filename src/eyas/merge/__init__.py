"""Many token sets become one corpus: cut, checked, counted, shuffled."""
