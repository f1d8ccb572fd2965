internal import CLinux
import Glibc

// The signals of the process that something here handles: dumps (DumpSignal.swift), channels and the end of co_main
// (MainCoroutine.swift).
//
//   UNHANDLED --first handler--> HANDLED --an arrival that leaves no handler--> UNHANDLED
//
// While HANDLED, a C handler leaves a mark (Signal.c), and a thread of the hub's own takes it and calls the handlers.
// So nothing that the program does to workers, queues and the main thread can keep a signal from its handlers, and a
// signal that all other threads block is let in. The thread starts with the first handler, and lives as long as the
// process.
//
// Handlers that want no more are dropped after the call, or when another handler is added for the signal: a program may
// ask for a signal very often that never arrives. If an arrival finds only handlers that do not want it, the
// signal gets its former effect back, and is raised once more: it is not lost.
//
// The tables are accessed under `lock`. Handlers are called under no lock, by the hub's thread alone, one after the
// other. Arrivals that come while one is being handled count as one.

enum SignalHub {
  /// Called for each arrival, on the hub's thread; returns whether it has taken the signal.
  ///
  /// False also drops it: it is not called again.
  typealias Handler = @Sendable () -> Bool

  private struct Entry {
    let number: UInt64
    let handler: Handler
    let isWanted: Handler
  }

  private static let lock = ThreadLock()
  // Sound because they are accessed under `lock`. A signal is HANDLED while it has a key here.
  nonisolated(unsafe) private static var entries: [Int32: [Entry]] = [:]
  nonisolated(unsafe) private static var lastNumber: UInt64 = 0
  nonisolated(unsafe) private static var hasThread = false
  /// The process that the tables are of.
  nonisolated(unsafe) private static var owner = getpid()

  private final class Parents: Sendable {
    private let entries: [Int32: [Entry]]
    init(_ entries: [Int32: [Entry]]) { self.entries = entries }
  }

  enum Refusal {
    /// The signal is none, or the kernel lets nobody handle it.
    case signal(Int32)
    /// The hub's thread could not be started.
    case thread(code: Int32)

    var sentence: String {
      switch self {
      case .signal(let number): "signal \(number) cannot be handled by a process"
      case .thread(let code): "the thread that takes signals could not be started (error \(code))"
      }
    }
  }

  /// Adds a handler; returns the reason if that is impossible.
  ///
  /// `isWanted`: whether the handler would take a signal; called on any thread.
  static func add(_ signal: Int32, isWanted: @escaping Handler = { true }, _ handler: @escaping Handler) -> Refusal? {
    ForkedChild.noteUse()
    let refusal: Refusal? = lock.withLock {
      // In a forked child the thread is not there, and the signals have their former effects.
      if owner != getpid() {
        owner = getpid()
        hasThread = false
        // Never released: handlers refer to the parent's coroutines.
        _ = Unmanaged.passRetained(Parents(entries))
        entries = [:]
      }
      if !hasThread, case let code = DetachedThread.start("co-signals", serve), code != 0 { return .thread(code: code) }
      hasThread = true
      if entries[signal] == nil, clinux_handle_signal(signal) != 0 { return .signal(signal) }
      lastNumber += 1
      entries[signal, default: []].append(Entry(number: lastNumber, handler: handler, isWanted: isWanted))
      return nil
    }
    if refusal == nil { dropUnwanted(signal) }
    return refusal
  }

  /// Drops the handlers that want no more, but never the new one: the signal stays HANDLED.
  private static func dropUnwanted(_ signal: Int32) {
    let unwanted = Set(lock.withLock { entries[signal] ?? [] }.lazy.filter { !$0.isWanted() }.map(\.number))
    guard !unwanted.isEmpty else { return }
    // The handlers are released after the lock is left.
    let former = lock.withLock {
      defer { entries[signal]?.removeAll { unwanted.contains($0.number) } }
      return entries[signal]
    }
    _ = consume former
  }

  @Sendable private static func serve() {
    while true {
      let taken = clinux_take_signals()
      for signal in Int32(1)...64 where taken & 1 << UInt64(signal - 1) != 0 { arrived(signal) }
    }
  }

  private static func arrived(_ signal: Int32) {
    while true {
      let called = lock.withLock { entries[signal] ?? [] }
      let declined = Set(called.lazy.filter { !$0.handler() }.map(\.number))
      let isTaken = declined.count < called.count
      // The handlers are released after the lock is left.
      let (isLeft, former): (Bool, [Entry]?) = lock.withLock {
        let former = entries[signal]
        let left = (former ?? []).filter { !declined.contains($0.number) }
        if !left.isEmpty {
          entries[signal] = left
        } else if entries.removeValue(forKey: signal) != nil {
          clinux_release_signal(signal)
        }
        return (!left.isEmpty, former)
      }
      _ = consume former
      if isTaken { return }
      if !isLeft { break }
      // A handler was added while the others declined: it gets the signal.
    }
    kill(getpid(), signal)
  }
}
