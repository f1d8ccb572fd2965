internal import CLinux
import Synchronization

// The thread that inspects the workers of a pool (Watchdog.swift). It sleeps on a word between two inspections
// (WatchdogWord.swift). A timer source of Dispatch would make a dozen system calls on three threads for each
// inspection: 0.2 calls a request of a server with one busy connection. It also needs a free descriptor when it is
// first set.
//
// The thread starts with the first inspection that is scheduled, and lives as long as the pool, for ever.

final class WatchdogThread: Sendable {
  private let word = WatchdogWord()

  /// Makes the pool's next inspection begin after `time`; the last call counts.
  ///
  /// Any thread.
  func schedule(_ time: WatchdogWord.Time, for pool: WorkerPool) {
    switch word.schedule(time) {
    case .nothing: break
    case .wake: word.wake()
    case .start: WorkerHost.startThread({ WatchdogThread.main($0) }, Unmanaged.passUnretained(pool).toOpaque())
    }
  }

  private static func main(_ argument: UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer? {
    guard let argument else { return nil }
    clinux_name_thread("co-watchdog")
    let pool = Unmanaged<WorkerPool>.fromOpaque(argument).takeUnretainedValue()
    pool.watchdog.serve(pool)
  }

  private func serve(_ pool: WorkerPool) -> Never {
    while true {
      let time = word.scheduled()
      guard let time else {
        word.sleep(nil, atMost: 0)
        continue
      }
      let end = Clock.now + time.nanoseconds
      while word.scheduled() == time, case let now = Clock.now, now < end { word.sleep(time, atMost: end - now) }
      guard word.begin(time) else { continue }
      pool.watch()
      word.end()
    }
  }
}

extension WatchdogWord.Time {
  fileprivate var nanoseconds: UInt64 { self == .soon ? 2_000_000 : 25_000_000 }
}
