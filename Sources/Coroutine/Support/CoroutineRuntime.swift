/// Settings and diagnostics of the whole runtime.
///
/// It is declared here, where nothing is named, so that each folder can add to it: the kernel what it reports, and
/// Inspect the functions.
public enum CoroutineRuntime {}
