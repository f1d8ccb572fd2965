#if Demo
/// The login's steps, in order.
///
/// The exit code of a failed step is 11 for the first, 12 for the second, and so on.
enum LoginStep: String, ProgressStep {
  case login
  case profile
  case avatar
  case effect
  case show

  var name: String { rawValue }

  var title: String {
    switch self {
    case .login: "Logging in"
    case .profile: "Fetching the profile"
    case .avatar: "Downloading the avatar"
    case .effect: "Applying the effect"
    case .show: "Showing the result"
    }
  }

  var isListed: Bool { self != .show }

  /// Its place in the order, from 1.
  var number: Int {
    guard let index = Self.allCases.firstIndex(of: self) else { preconditionFailure("allCases has every case") }
    return index + 1
  }
}

/// A failure and the step that it happened in.
struct StepFailure: Error, CustomStringConvertible {
  var step: LoginStep
  var cause: any Error

  var description: String { "\(step.title) failed: \(cause)" }
}
#endif
