#if !ServiceLifecycle
// Without the trait ServiceLifecycle this module has no functions, and a package that depends on it fetches no other
// package. If a program uses the module without the trait, the declarations below produce a compiler error that names
// the trait.

/// A service of swift-service-lifecycle; needs the trait ServiceLifecycle.
@available(
  *,
  unavailable,
  message: "CoroutineServiceLifecycle needs the trait ServiceLifecycle: .package(…, traits: [\"ServiceLifecycle\"])"
)
public struct CoroutineService {
  /// Creates a service; needs the trait ServiceLifecycle.
  @available(
    *,
    unavailable,
    message: "CoroutineServiceLifecycle needs the trait ServiceLifecycle: .package(…, traits: [\"ServiceLifecycle\"])"
  )
  public init(_ name: String = "", drain: Duration = .zero, _ body: @escaping @Sendable () throws -> Void) {
    fatalError("unavailable")
  }
}
#endif
