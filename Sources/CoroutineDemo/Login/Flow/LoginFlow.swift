#if Demo
import Coroutine

/// Log in, fetch the profile, download the avatar, apply an effect, show it: as a coroutine.
///
/// The same job with callbacks is LoginFlow+Callbacks.swift; the README of the folder Login shows both side by side.
struct LoginFlow: Sendable {
  var site: Site
  var account: Account
  var timeout: Duration
  var progress: Progress<LoginStep>
  var show: @Sendable (Profile, Artwork) throws -> Void
  /// Runs once, whatever the end is.
  var cleanUp: @Sendable () -> Void

  func start() -> Job<Void> {
    co_launch(name: "login") {
      progress.show()
      try co_timeout(timeout) {
        let token = try step(.login) { try site.logIn(account) }
        let profile = try step(.profile) { try site.profile(token) }
        let avatar = try step(.avatar) { try site.avatar(profile) }
        let art = try step(.effect) { try co_blocking { try Artwork(png: avatar) } }
        try step(.show) { try co_blocking { try show(profile, art) } }
      }
    }
    .finally { cleanUp() }
  }

  /// Tells the progress display, and whoever reads the failure, which step it is.
  ///
  /// What ends the job from outside is no step's failure and passes through as it is.
  private func step<Output>(_ step: LoginStep, _ body: () throws -> Output) throws -> Output {
    progress.begin(step)
    do {
      let output = try body()
      progress.complete(step)
      return output
    } catch {
      let isFromOutside = error is Interrupted || error is CancellationError
      progress.end(step, as: isFromOutside ? .stopped : .failed)
      throw isFromOutside ? error : StepFailure(step: step, cause: error)
    }
  }
}
#endif
