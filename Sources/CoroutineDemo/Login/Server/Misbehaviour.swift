#if Demo
/// How the built-in server misbehaves, for those who want to see a step fail.
struct Misbehaviour: Sendable {
  /// Which step of the login its answers spoil.
  enum Fault: String, CaseIterable, Sendable {
    /// 503 instead of a token.
    case login
    /// 503 instead of the profile.
    case profile
    /// 503 instead of the picture.
    case avatar
    /// A picture that breaks off in the middle: it downloads well, and no effect can be applied to it.
    case effect
  }

  var fault: Fault?
  /// Waited before each answer.
  var latency: Duration = .zero
}
#endif
