"""The files people have -> conversations in the OpenAI form."""
