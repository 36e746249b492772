"""SGLang's side of the worker."""
