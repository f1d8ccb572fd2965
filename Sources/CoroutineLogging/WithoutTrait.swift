#if !Logging
// Without the trait Logging this module has no functions, and a package that depends on it does not fetch swift-log. If
// a program uses the module without the trait, the declarations below produce a compiler error that names the trait.

/// A provider of metadata for swift-log; needs the trait Logging.
@available(*, unavailable, message: "CoroutineLogging needs the trait Logging: .package(…, traits: [\"Logging\"])")
public enum Logger {
  /// A provider of metadata; needs the trait Logging.
  public enum MetadataProvider {
    /// The coroutine's number and name; needs the trait Logging.
    @available(*, unavailable, message: "CoroutineLogging needs the trait Logging: .package(…, traits: [\"Logging\"])")
    public static var coroutine: Never { fatalError("unavailable") }
  }
}
#endif
