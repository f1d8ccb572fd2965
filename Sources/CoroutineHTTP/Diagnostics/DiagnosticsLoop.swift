#if HTTP
import Coroutine
import CoroutineNet
import Dispatch
import Glibc
import Synchronization

// The thread that serves diagnostics, and does nothing else.
//
// A worker that is blocked, and a queue whose thread is, cannot delay its coroutines: they are resumed on this thread
// alone, and the events of their sockets come from the thread of the poller. It exists from the first server on, until
// the process ends, as that one does.
//
// `work` and `timer` are accessed under the lock. The semaphore is signalled after work was added, so a wait that
// begins after that ends at once; a signal too many makes one empty round.

final class DiagnosticsLoop: CoroutineHost {
  private struct State {
    var drains: [HostedDrain] = []
    var timer: (drain: HostedDrain, deadline: DispatchTime)?
  }

  private let state = ThreadMutex(State())
  private let wakeUp = DispatchSemaphore(value: 0)
  private let thread = Atomic<UInt>(0)

  private static let running = ThreadMutex<HostedScheduler?>(nil)

  /// The scheduler of the thread, which the first call starts.
  static func scheduler(for address: SocketAddress) throws(NetError) -> HostedScheduler {
    let (scheduler, code) = running.withLock { running -> (HostedScheduler?, Int32) in
      if let running { return (running, 0) }
      let loop = DiagnosticsLoop()
      let code = DetachedThread.start("co-diagnostics") { loop.run() }
      if code == 0 { running = HostedScheduler(loop) }
      return (running, code)
    }
    guard let scheduler else { throw NetError(code: code, "starting a thread for", address) }
    return scheduler
  }

  private func run() {
    thread.store(UInt(pthread_self()), ordering: .relaxed)
    while true {
      let (drains, due, deadline) = state.withLock { state in
        let drains = state.drains
        state.drains = []
        guard let timer = state.timer else { return (drains, HostedDrain?.none, DispatchTime.distantFuture) }
        guard timer.deadline <= .now() else { return (drains, nil, timer.deadline) }
        state.timer = nil
        return (drains, timer.drain, .now())
      }
      for drain in drains { drain() }
      due?.timerFired()
      // What ran may have set a timer.
      if drains.isEmpty, due == nil { _ = wakeUp.wait(timeout: deadline) }
    }
  }

  // MARK: CoroutineHost

  var coroutineLabel: String { "diagnostics" }

  var isCurrentForCoroutines: Bool { thread.load(ordering: .relaxed) == UInt(pthread_self()) }

  func submit(_ drain: HostedDrain) {
    state.withLock { $0.drains.append(drain) }
    wakeUp.signal()
  }

  func schedule(_ drain: HostedDrain, after delay: Duration) {
    let deadline = DispatchTime.now() + .nanoseconds(Int(delay / .nanoseconds(1)))
    state.withLock { $0.timer = (drain, deadline) }
  }

  func unschedule() { state.withLock { $0.timer = nil } }
}
#endif
