#if !ServiceLifecycle
// Without the trait ServiceLifecycle this module has no functions, and a package that depends on it fetches no other
// package. If a program uses the module without the trait, the declaration below produces a compiler error that names
// the trait.

/// A service of swift-service-lifecycle; needs the trait ServiceLifecycle.
@available(
  *,
  unavailable,
  message: "CoroutineServiceLifecycle needs the trait ServiceLifecycle: .package(…, traits: [\"ServiceLifecycle\"])"
)
public struct CoroutineService {
  /// A service; needs the trait ServiceLifecycle.
  public init(_ name: String = "service", drain: Duration = .seconds(10), _ body: @escaping () throws -> Void) {}
}
#endif
