internal import CLinux
import Dispatch
import Glibc

// The signals of the process that something here handles: dumps (DumpSignal.swift) and channels
// (Process/Signals.swift).
//
//   UNHANDLED --first handler--> HANDLED --an arrival that leaves no handler--> UNHANDLED
//
// While HANDLED, a C handler marks an eventfd (Signal.c), and a queue of the signal's own reads it and calls the
// handlers. Handlers that want no more are dropped after the call. If an arrival finds only handlers that do not want
// it, the signal gets its former effect back, and is raised once more: it is not lost.
//
// Everything is accessed under `lock`. Handlers are called under it as well, so they must neither block nor use the
// hub. Arrivals that come while one is being handled count as one.

enum SignalHub {
  /// Called for each arrival; returns whether it has taken the signal.
  ///
  /// False also drops it: it is not called again.
  typealias Handler = @Sendable () -> Bool

  private struct Entry {
    var handlers: [Handler] = []
    /// Kept when the signal is no longer handled: its descriptor stays the same.
    let source: any DispatchSourceRead
    var isHandled = true
  }

  private static let lock = ThreadLock()
  // Sound because it is accessed under `lock`.
  nonisolated(unsafe) private static var entries: [Int32: Entry] = [:]

  /// Adds a handler; returns an error number, 0 if there is none.
  static func add(_ signal: Int32, _ handler: @escaping Handler) -> Int32 {
    lock.withLock {
      if entries[signal]?.isHandled == true {
        entries[signal]?.handlers.append(handler)
        return 0
      }
      let descriptor = clinux_notice_signal(signal)
      if descriptor < 0 { return errno }
      if entries[signal] == nil { entries[signal] = Entry(source: source(signal, descriptor)) }
      entries[signal]?.isHandled = true
      entries[signal]?.handlers.append(handler)
      return 0
    }
  }

  private static func source(_ signal: Int32, _ descriptor: Int32) -> any DispatchSourceRead {
    // A queue of its own: the signal may have come because one of the program's queues is stuck.
    let queue = DispatchQueue(label: "coroutine.signal.\(signal)", qos: .userInitiated)
    let source = DispatchSource.makeReadSource(fileDescriptor: descriptor, queue: queue)
    source.setEventHandler { arrived(signal, descriptor) }
    source.activate()
    return source
  }

  private static func arrived(_ signal: Int32, _ descriptor: Int32) {
    var count: UInt64 = 0
    // Read before the handlers are called: a signal that arrives meanwhile causes another call.
    guard read(descriptor, &count, MemoryLayout<UInt64>.size) > 0 else { return }
    let isTaken = lock.withLock {
      guard let handlers = entries[signal]?.handlers else { return false }
      let wanting = handlers.filter { $0() }
      entries[signal]?.handlers = wanting
      if !wanting.isEmpty { return true }
      entries[signal]?.isHandled = false
      clinux_release_signal(signal)
      return false
    }
    if !isTaken { kill(getpid(), signal) }
  }
}
