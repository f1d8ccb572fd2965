#if Demo
import Dispatch

extension LoginFlow {
  /// The same job as `start`, written with callbacks: what a coroutine replaces.
  func startWithCallbacks() -> CallbackRun {
    let run = CallbackRun(progress: progress, cleanUp: cleanUp)
    progress.show()
    guard run.begin(.login) else { return run }
    run.cancel(after: timeout)
    run.covers(
      site.logIn(account) { result in
        switch result {
        case .failure(let error):
          run.fail(.login, error)
        case .success(let token):
          guard run.complete(.login), run.begin(.profile) else { return }
          run.covers(
            site.profile(token) { result in
              switch result {
              case .failure(let error):
                run.fail(.profile, error)
              case .success(let profile):
                guard run.complete(.profile), run.begin(.avatar) else { return }
                run.covers(
                  site.avatar(profile) { result in
                    switch result {
                    case .failure(let error):
                      run.fail(.avatar, error)
                    case .success(let avatar):
                      guard run.complete(.avatar), run.begin(.effect) else { return }
                      DispatchQueue.global().async {
                        switch Result(catching: { try Artwork(png: avatar) }) {
                        case .failure(let error):
                          run.fail(.effect, error)
                        case .success(let art):
                          guard run.complete(.effect), run.begin(.show) else { return }
                          do {
                            try show(profile, art)
                            guard run.complete(.show) else { return }
                            run.finish(.success(()))
                          } catch {
                            run.fail(.show, error)
                          }
                        }
                      }
                    }
                  }
                )
              }
            }
          )
        }
      }
    )
    return run
  }
}
#endif
