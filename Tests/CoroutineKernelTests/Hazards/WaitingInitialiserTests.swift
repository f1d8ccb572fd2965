import Coroutine
import Dispatch
import Glibc
import Testing

/// A value that is made at its first use, by code that waits until `mayEnd` and then continues on another thread.
private enum Settings {
  static let mayEnd = Gate()
  static let hasBegun = Flag()
  static let isMade = Flag()
  static let loop = Loop()
  static let other = HostedScheduler(loop)

  static let shared: Int = {
    do {
      return try make()
    } catch {
      return -1
    }
  }()

  static func make() throws -> Int {
    hasBegun.raise()
    try mayEnd.pass()
    try co_switch(to: other)
    isMade.raise()
    return 7
  }
}

/// A coroutine that gets the value, and the thread that it begins on.
private final class User: Sendable {
  private let thread = Locked<pid_t>(0)
  private let isThere = Flag()
  let hasEnded = Flag()

  /// Returns when the coroutine is about to get the value.
  func begin(on host: HostedScheduler, _ value: @escaping @Sendable () throws -> Int) -> Job<Void> {
    let job = co_launch(on: host) { [self] in
      thread.current = threadID()
      isThere.raise()
      if try value() == 7 { hasEnded.raise() }
    }
    while !isThere.isRaised { sched_yield() }
    return job
  }

  /// Whether the thread sleeps in futex(2).
  var isBlocked: Bool {
    #if arch(x86_64)
    let futex = "202 "
    #else
    let futex = "98 "
    #endif
    return text(of: "/proc/self/task/\(thread.current)/syscall").hasPrefix(futex)
  }
}

/// Hazard 19: Swift makes a global, or a static property, under a lock that belongs to a thread.
@Suite("A value whose initialiser waits", .timeLimit(.minutes(10)))
struct WaitingInitialiserTests {
  // The deadline is real, here and below: that something never happens cannot be seen otherwise.
  @Test(.tags(.realClock)) func `a static let stops its own thread, when the next coroutine there wants it`() async {
    await #expect(processExitsWith: .success) {
      synchronously {
        let loop = Loop()
        let (host, first, second, ran) = (HostedScheduler(loop), User(), User(), Flag())
        _ = first.begin(on: host) { Settings.shared }
        _ = second.begin(on: host) { Settings.shared }
        Settings.mayEnd.open()
        loop.execute { ran.raise() }
        RealClock.block(for: .milliseconds(300))
        precondition(!first.hasEnded.isRaised && !second.hasEnded.isRaised && !ran.isRaised)
        withExtendedLifetime(loop) { _exit(0) }
      }
    }
  }

  // A thread that waits in ThreadSanitizer's own lock of initial values does not sleep.
  @Test(.tags(.realClock), .enabled(if: !isSanitized))
  func `a static let stops two threads for ever, when its initialiser ends on another one than it began on`() async {
    await #expect(processExitsWith: .success) {
      synchronously {
        let loops = [Loop(), Loop()]
        let (first, second) = (User(), User())
        _ = first.begin(on: HostedScheduler(loops[0])) { Settings.shared }
        // Otherwise the second thread may be the first one there.
        while !Settings.hasBegun.isRaised { sched_yield() }
        _ = second.begin(on: HostedScheduler(loops[1])) { Settings.shared }
        while !second.isBlocked { sched_yield() }
        Settings.mayEnd.open()
        // The flag is set before the lock is given up: a thread that comes now takes no lock.
        while !Settings.isMade.isRaised { sched_yield() }
        RealClock.block(for: .milliseconds(300))
        precondition(Settings.shared == 7)
        // The second waits for the first one's former thread to unlock; the first may not unlock, and tries again and
        // again.
        precondition(!second.hasEnded.isRaised && second.isBlocked && !first.hasEnded.isRaised)
        withExtendedLifetime(loops) { _exit(0) }
      }
    }
  }

  @Test func `a Once suspends the others meanwhile, on the same thread and on another one`() async throws {
    await #expect(processExitsWith: .success) {
      let once = Once<Int>()
      let loops = [Loop(), Loop()]
      let users = (0..<3).map { _ in User() }
      let jobs = synchronously {
        zip(users, [0, 0, 1]).map { user, loop in
          user.begin(on: HostedScheduler(loops[loop])) { try once.run { try Settings.make() } }
        }
      }
      Settings.mayEnd.open()
      for job in jobs { try await job.value }
      precondition(users.allSatisfy(\.hasEnded.isRaised) && once.value == 7)
      withExtendedLifetime(loops) {}
    }
  }
}
