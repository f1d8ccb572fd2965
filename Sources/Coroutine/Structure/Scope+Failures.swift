extension Scope {
  /// What the failure of a child does to its scope.
  public struct Failures: Sendable, Hashable {
    let areIsolated: Bool

    /// The first failure, of a child or of the body, cancels the others, and is thrown at the end.
    public static var together: Failures { Failures(areIsolated: false) }

    /// A child's failure cancels neither its siblings nor the body.
    public static var isolated: Failures { Failures(areIsolated: true) }
  }
}
