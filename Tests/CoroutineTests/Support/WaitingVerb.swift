import Coroutine
import Dispatch

/// The verbs that wait.
///
/// The common rules are tested with every one of them.
enum WaitingVerb: String, CaseIterable, Sendable {
  case join
  case awaitJob
  case awaitPromise
  case awaitAsync
  case suspend
  case delay
  case zeroDelay
  case yield
  case switchQueue
  case blocking
  case readable
  case writable
  case scope
  case supervise
  case timeout
  case all
  case allSettled
  case any
  case race

  /// The verbs that can be made to wait until they are cancelled.
  static let parking = allCases.filter { ![.zeroDelay, .yield, .switchQueue].contains($0) }

  /// The operands of the verbs: all settled, finished and ready, so that no verb has to wait.
  struct Props: Sendable {
    let job: Job<Int>
    let promise = Promise.value(1)
    let queue = taggedQueue("props")
    let pipe = PipePair()

    init() async throws {
      job = co_launch { 1 }
      _ = try await job.value
      pipe.put()
    }
  }

  /// Calls the verb so that it could finish at once.
  ///
  /// `trace` tells whether any body ran.
  func callWhereItCouldFinishAtOnce(_ props: Props, _ trace: Trace) throws {
    let (job, promise) = (props.job, props.promise)
    switch self {
    case .join: try job.join()
    case .awaitJob: _ = try co_await(job)
    case .awaitPromise: _ = try co_await(promise)
    case .awaitAsync: try co_await { trace("ran") }
    case .suspend:
      try co_suspend { (done: Resumer<Void>) in
        trace("ran")
        done.resume(())
      }
    case .delay: try co_delay(.nanoseconds(1))
    case .zeroDelay: try co_delay(.zero)
    case .yield: try co_yield()
    case .switchQueue: try co_switch(to: props.queue)
    case .blocking: try co_blocking { trace("ran") }
    case .readable: try co_wait(readable: props.pipe.reader)
    case .writable: try co_wait(writable: props.pipe.writer)
    case .scope: try co_scope { _ in trace("ran") }
    case .supervise: try co_supervise { _ in trace("ran") }
    case .timeout: try co_timeout(.seconds(60)) { trace("ran") }
    case .all: _ = try co_all([promise])
    case .allSettled: _ = try co_allSettled([promise])
    case .any: _ = try co_any([promise])
    case .race: _ = try co_race([promise])
    }
  }

  /// Whether a call runs a closure.
  var runsBody: Bool {
    switch self {
    case .awaitAsync, .suspend, .blocking, .scope, .supervise, .timeout: true
    default: false
    }
  }

  /// Calls the verb so that it waits until it is cancelled.
  func park() throws {
    let never = Promise<Int>()
    let pipe = PipePair()
    switch self {
    case .join, .awaitJob:
      let job = co_launch { try waitForCancellation() }
      defer { job.cancel() }
      if self == .join { try job.join() } else { try co_await(job) }
    case .awaitPromise: _ = try co_await(never)
    case .awaitAsync: try co_await { try await Task.sleep(for: .seconds(3600)) }
    case .suspend:
      let kept = Locked<Resumer<Void>?>(nil)
      defer { withExtendedLifetime(kept) {} }
      try co_suspend { kept.current = $0 }
    case .delay: try co_delay(.seconds(3600))
    case .blocking:
      let end = DispatchSemaphore(value: 0)
      defer { end.signal() }
      try co_blocking { end.wait() }
    case .readable: try co_wait(readable: pipe.reader)
    case .writable:
      pipe.fill()
      try co_wait(writable: pipe.writer)
    case .scope: try co_scope { scope in scope.launch { try waitForCancellation() } }
    case .supervise: try co_supervise { scope in scope.launch { try waitForCancellation() } }
    case .timeout: try co_timeout(.seconds(3600)) { try waitForCancellation() }
    case .all: _ = try co_all([never])
    case .allSettled: _ = try co_allSettled([never])
    case .any: _ = try co_any([never])
    case .race: _ = try co_race([never])
    case .zeroDelay, .yield, .switchQueue: preconditionFailure("\(self) never waits for long")
    }
    withExtendedLifetime(pipe) {}
  }
}
