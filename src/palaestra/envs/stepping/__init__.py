"""How environments are stepped together: one after another, in threads, in processes, or by themselves."""
