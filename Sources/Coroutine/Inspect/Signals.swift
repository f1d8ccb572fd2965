internal import CCoroutineRuntime
internal import CLinux
import Dispatch
import Glibc
import Synchronization

// The signals of the process that something here handles: dumps, channels and the end of co_main
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
// signal gets its former effect back, and is raised once more: it is not lost. (Not if that effect is a handler of
// other code, which Signal.c has called.)
//
// Where Dispatch handles a signal as well, for a DispatchSource of the program, the hub has a source too, because
// Dispatch may take a signal before any handler runs (Signal.c). It is made when Dispatch's handler is found below
// ours, and it counts once it is registered. Then it needs what the program's source needs: a thread of Dispatch.
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
  /// The sources of the signals that Dispatch handles as well.
  nonisolated(unsafe) private static var sources: [Int32: (number: UInt64, source: any DispatchSourceSignal)] = [:]
  private static let queue = DispatchQueue(label: "coroutine.signals")
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
        for entry in sources.values { _ = Unmanaged.passRetained(entry.source as AnyObject) }
        (entries, sources) = ([:], [:])
      }
      if !hasThread, case let code = DetachedThread.start("co-signals", serve), code != 0 { return .thread(code: code) }
      hasThread = true
      if entries[signal] == nil, clinux_handle_signal(signal) != 0 { return .signal(signal) }
      lastNumber += 1
      entries[signal, default: []].append(Entry(number: lastNumber, handler: handler, isWanted: isWanted))
      return nil
    }
    if refusal == nil {
      dropUnwanted(signal)
      joinDispatch()
    }
    return refusal
  }

  // MARK: Dispatch

  /// Makes the sources that are missing, and cancels those that are not needed any more; any thread.
  ///
  /// A new source is waited for, so that the next signal is not lost; not for long, because Dispatch may have no
  /// thread.
  private static func joinDispatch() {
    let registered = DispatchSemaphore(value: 0)
    let count = lock.withLock {
      // Under the lock: what was seen before it may be out of date, and would cancel another thread's source.
      let wanted = clinux_signals_of_dispatch()
      var count = 0
      for signal in Int32(1)...64 {
        let isWanted = wanted & 1 << UInt64(signal - 1) != 0 && entries[signal] != nil
        if isWanted == (sources[signal] != nil) { continue }
        if isWanted {
          lastNumber += 1
          sources[signal] = (lastNumber, makeSource(signal, lastNumber, registered))
          count += 1
        } else {
          clinux_take_from_dispatch(signal, false)
          sources.removeValue(forKey: signal)?.source.cancel()
        }
      }
      return count
    }
    for _ in 0..<count { _ = registered.wait(timeout: .now() + .milliseconds(100)) }
  }

  private static func makeSource(
    _ signal: Int32,
    _ number: UInt64,
    _ registered: DispatchSemaphore
  ) -> any DispatchSourceSignal {
    let source = DispatchSource.makeSignalSource(signal: signal, queue: queue)
    source.setRegistrationHandler {
      // It may come late, when the source is not needed any more.
      lock.withLock { if sources[signal]?.number == number { clinux_take_from_dispatch(signal, true) } }
      registered.signal()
    }
    source.setEventHandler { clinux_came_from_dispatch(signal) }
    source.resume()
    return source
  }

  // MARK: The thread

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
      joinDispatch()
      let taken = clinux_take_signals()
      for signal in Int32(1)...64 where taken & 1 << UInt64(signal - 1) != 0 { arrived(signal) }
    }
  }

  private static func arrived(_ signal: Int32) {
    while true {
      let called = lock.withLock { entries[signal] ?? [] }
      let declined = Set(called.lazy.filter { !$0.handler() }.map(\.number))
      let isTaken = declined.count < called.count
      var mustRaise = false
      // The handlers are released after the lock is left.
      let (isLeft, former): (Bool, [Entry]?) = lock.withLock {
        let former = entries[signal]
        let left = (former ?? []).filter { !declined.contains($0.number) }
        if !left.isEmpty {
          entries[signal] = left
        } else if entries.removeValue(forKey: signal) != nil {
          mustRaise = clinux_release_signal(signal)
        }
        return (!left.isEmpty, former)
      }
      _ = consume former
      if isTaken { return }
      if !isLeft {
        if mustRaise { kill(getpid(), signal) }
        return
      }
      // A handler was added while the others declined: it gets the signal.
    }
  }
}

// MARK: - Dumps on SIGUSR2

// The dumps that SIGUSR2 asks for. The thread that takes signals (SignalHub) notices each of them and must not wait. A
// dump may wait: it takes locks, and writes into a pipe that may be full. A queue would not do, because all threads of
// Dispatch may be blocked, or, in a forked child, have stayed in the parent. So a thread of its own writes, and ends.
//
// `wanted` counts the signals since the last dump began: 0 while no thread writes.
//
//   0 --signal: a thread starts--> 1 --signal--> 2 …
//   n --written--> 0: the thread ends          if no signal has come since the thread has read n
//   n --written--> n: it writes one more dump  otherwise
//
// One thread writes: only the signals' thread leaves 0, and only the thread that writes goes back to it. No signal is
// lost: it comes before that step, which then fails, or it finds 0.

extension CoroutineRuntime {
  private static let dumpsOnSignal = Atomic<Bool>(false)
  private static let dumpKind = Atomic<Int>(0)
  private static let wanted = Atomic<UInt>(0)

  /// Makes SIGUSR2 write ``dump(_:)`` to standard error, even while every queue is stuck.
  ///
  /// Signals that arrive while a dump is being written cause one more dump. The signal is noticed also if the process
  /// was started with it blocked. Where the process has met a limit on threads, a signal has no effect. A program that
  /// does not call this does the same, with `.stacks`, if the environment variable COROUTINE_DUMP is `SIGUSR2` when it
  /// first uses the runtime.
  ///
  /// After the coroutines come the queues that hold something (``queues(most:)``), and the last 16 coroutines that have
  /// ended. If the flight recorder is on and has a folder, its recording is written there too
  /// (``startRecording(bytesPerWorker:filesIn:)``).
  ///
  /// - Parameter detail: The form of the dump; that of the last call counts.
  public static func dumpOnSignal(_ detail: DumpDetail = .list) {
    dumpKind.store(detail.kind.rawValue, ordering: .relaxed)
    if dumpsOnSignal.exchange(true, ordering: .relaxed) { return }
    EndedJobs.begin()
    let refusal = SignalHub.add(SIGUSR2) {
      if wanted.wrappingAdd(1, ordering: .acquiringAndReleasing).oldValue == 0,
        DetachedThread.start("co-dump", writeWanted) != 0
      {
        wanted.store(0, ordering: .relaxed)
      }
      return true
    }
    if let refusal { misuse("CoroutineRuntime.dumpOnSignal: \(refusal.sentence)") }
  }

  @Sendable private static func writeWanted() {
    var noticed: UInt
    repeat {
      noticed = wanted.load(ordering: .acquiring)
      writeToStandardError(
        dump(DumpDetail(kind: .init(rawValue: dumpKind.load(ordering: .relaxed)) ?? .list)) + queuesText(16)
          + endedText(16),
        mayWait: true
      )
      RecordingFiles.writeOnRequest()
    } while !wanted.compareExchange(expected: noticed, desired: 0, ordering: .acquiringAndReleasing).exchanged
  }
}

// MARK: - The environment

/// Puts what this folder has into the kernel's tables, and applies its environment variables; called when the first
/// scheduler is made (SchedulerRegistry).
///
/// The kernel calls it through the C core, because it names no folder but its own.
@_cdecl("cco_apply_environment")
func applyEnvironment() {
  Recorder.listen()
  CoroutineRuntime.Stall.listen()
  func setting(_ name: String) -> String? {
    // Who starts a privileged program does not choose where it writes files.
    clinux_secure_setting(name).map { String(cString: $0) }.flatMap { $0.isEmpty ? nil : $0 }
  }
  if let dump = setting("COROUTINE_DUMP") {
    guard dump == "SIGUSR2" else {
      misuse("COROUTINE_DUMP is '\(dump.asWord)'. Set it to SIGUSR2, or leave it unset.")
    }
    CoroutineRuntime.dumpOnSignal(.stacks)
  }
  TasksOnWorkers.applyEnvironment()
  guard let record = setting("COROUTINE_RECORD"), record != "0" else { return }
  guard record == "1" || record.hasPrefix("/") else {
    misuse("COROUTINE_RECORD is '\(record.asWord)'. Set it to 1, or to the path of a folder, or leave it unset.")
  }
  CoroutineRuntime.startRecording(filesIn: record == "1" ? nil : record)
}
