internal import CLinux
import Coroutine
import Glibc
package import Synchronization

/// Finds a step that never ends: one that waits for a lock of a thread, which another Task has taken and holds over an
/// await, or one that computes for ever, as a loop does over what is always ready.
///
/// A thread of its own looks once in a second. It ends the process, because nothing can take the world's thread out of
/// the wait; so does the step before it, which has printed the schedule.
package enum AsyncWatch {
  /// The number of steps' beginnings and ends; odd during a step.
  private static let mark = Atomic<UInt>(0)
  private static let watched = Guarded<(tasks: UInt, thread: Int32, clock: clockid_t)?>(nil)
  /// For how many seconds a step may block its thread.
  static let limit = Atomic<Int>(10)
  /// For how many seconds a step may compute, in time of the processor.
  package static let mostComputing = Atomic<Int>(30)

  // One thread at a time drives a world with async code.
  static func stepBegins() { mark.store(mark.load(ordering: .relaxed) | 1, ordering: .relaxed) }
  static func stepEnds() { mark.store((mark.load(ordering: .relaxed) | 1) &+ 1, ordering: .relaxed) }

  static func watch(_ tasks: AsyncTasks?) {
    _ = thread
    let thread = clinux_thread_id()
    var clock = clockid_t()
    pthread_getcpuclockid(pthread_self(), &clock)
    let address = tasks.map { UInt(bitPattern: Unmanaged.passUnretained($0).toOpaque()) }
    watched.withLock { $0 = address.map { ($0, thread, clock) } }
  }

  private static let thread = DetachedThread.start("world-watch") { look() }

  private static func look() {
    var (seen, since, start) = (UInt(0), 0, 0)
    while true {
      sleep(1)
      let now = mark.load(ordering: .relaxed)
      watched.withLock { watched in
        guard let watched else { return }
        // Of the thread, which is there as long as it is watched.
        var used = timespec()
        clock_gettime(watched.clock, &used)
        guard now == seen, now & 1 == 1 else {
          (seen, since, start) = (now, 0, used.tv_sec)
          return
        }
        if used.tv_sec - start >= mostComputing.load(ordering: .relaxed) {
          UnsafeMutableRawPointer(bitPattern: watched.tasks).map(AsyncTasks.at)?.report(
            "has computed for \(used.tv_sec - start) s without a suspension (does it go through a sequence that is "
              + "always ready? In a world nothing else runs meanwhile)"
          )
          abort()
        }
        let call = clinux_thread_call("/proc/self/task", watched.thread)
        guard call >= 0 || call == CLINUX_THREAD_SLEEPS.rawValue else {
          since = 0
          return
        }
        since += 1
        guard since >= limit.load(ordering: .relaxed) else { return }
        let name = clinux_call_name(call).map { "in \(String(cString: $0)) " } ?? ""
        // Sound because a world that ends takes the lock first.
        UnsafeMutableRawPointer(bitPattern: watched.tasks).map(AsyncTasks.at)?.report(
          "has blocked its thread \(name)for \(since) s (does another Task hold a lock of a thread over an await, or "
            + "this one already, as under a handler of a stream's end? a Mutex or NSLock must be released before)"
        )
        abort()
      }
    }
  }
}
