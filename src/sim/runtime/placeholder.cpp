// Replaced by the runtime.
