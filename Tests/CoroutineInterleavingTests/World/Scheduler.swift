internal import CCoroutine

// The part of Scheduler.swift that the shipped files of this target use.

typealias Anchor = AnyObject

/// A scheduler whose host is a virtual thread: a submitted drain opens that thread's gate.
@usableFromInline
final class Scheduler: @unchecked Sendable {
  // Sound because virtual threads run on one thread.
  let inbox = Inbox()
  @usableFromInline let readyQueue: UnsafeMutablePointer<ReadyQueue>
  let worker: Unmanaged<WorkerState>?
  var work = WorkQueue()
  /// Closed while no drain is submitted.
  let gate = Gate()
  private var isSubmitted = false
  /// Called where a pool asks for its watchdog; of the pool's first worker.
  var watchdogStarts: () -> Void = {}

  init(pool: WorkerPool? = nil, index: Int = 0) {
    worker = pool.map { _ in Unmanaged.passRetained(WorkerState(index)) }
    readyQueue = .allocate(capacity: 1)
    readyQueue.initialize(to: ReadyQueue(workerPool: pool.map(Unmanaged.passUnretained)))
  }

  deinit {
    readyQueue.deinitialize(count: 1)
    readyQueue.deallocate()
    worker?.release()
  }

  func push(_ message: Inbox.Message) {
    if inbox.push(message) { submit() }
  }

  func send(_ message: Inbox.Message) {
    if isRunningHere { handle(message) } else { push(message) }
  }

  var isRunningHere: Bool {
    Carrier.current?.pointee.scheduler?.toOpaque() == Unmanaged.passUnretained(self).toOpaque()
  }

  func handle(_ message: Inbox.Message) {
    switch message {
    case .job(let job): readyQueue.append(job)
    case .work(let item):
      if let interrupt = Interrupt.owned(by: item) {
        handle(interrupt)
      } else if worker != nil, let arrival = Arrival.owned(by: item) {
        if let job = arrive(arrival) { readyQueue.append(job) }
      } else if worker == nil || work.isEmpty {
        work.append(message)
      } else {
        push(message)
      }
    case .swiftJob: fatalError("no model enqueues a Swift job on a scheduler")
    }
  }

  let host = ModelHost()
  let isImmortal = true
  /// The pins, less those that were given up.
  var pins = 0
  func pin(_ anchor: AnyObject?) { pins += 1 }
  func unpin() { pins -= 1 }
  func register(_ job: JobRef, holding anchor: AnyObject?) { job.pointee.home = Unmanaged.passUnretained(self) }
  func unregister(_ job: JobRef) {}
  /// No model counts.
  func noteSteal(of count: Int) {}

  /// A job that has arrived is a virtual thread.
  func resumeNext(_ job: JobRef, _ carrier: UnsafeMutablePointer<Carrier>) { Carrier.makeReady(job) }

  /// No model has a body of co_isolated.
  func runStarted(by job: JobRef, _ body: () -> Void) { body() }

  /// Queues a drain.
  func submit() {
    Explorer.current?.require(!isSubmitted, "a drain was submitted twice")
    isSubmitted = true
    gate.open()
  }

  /// The body of the host's thread: a serial queue whose only blocks are this scheduler's drains.
  func host(_ drain: () -> Void) {
    while true {
      guard gate.passOrEnd() else { return }
      isSubmitted = false
      gate.close()
      Carrier.enter(self) { _ in drain() }
    }
  }
}

struct ModelHost {
  func willHandleInterrupt() {}
}

enum SchedulerRegistry {
  static func noteStart(on outer: UnsafeMutablePointer<Carrier>?) {}
}

/// No virtual thread is in a simulated world.
struct Host {
  static func of(_ job: JobRef) -> Host { Host() }
  var isCalledFromOutside: Bool { false }
  func checkWake(_ job: JobRef) {}
}

enum Events {
  enum Kind { case run, taskReady, taskRun, taskLeave }

  static func note(_ kind: Kind, _ job: JobRef?, _ argument: UInt64) {}
  static func noteReturn(of job: JobRef, _ leaving: UInt) {}
}

extension Carrier {
  mutating func followRecorder(of outer: UnsafeMutablePointer<Carrier>?) {}
}

/// A byte that keeps virtual threads waiting.
final class Gate {
  private let word: UnsafeMutablePointer<UInt8>

  init() {
    word = .allocate(capacity: 1)
    word.initialize(to: 1)
  }

  deinit { word.deallocate() }

  var isOpen: Bool { word.pointee == 0 }
  func open() { word.pointee = 0 }
  func close() { word.pointee = 1 }

  /// Waits until the gate is open.
  func pass(_ function: StaticString = #function) {
    _ = Explorer.current?.wait(function, gate: UnsafePointer(word), mayEnd: false)
  }

  /// As pass; false: the execution ends, because nothing is left that could open the gate.
  func passOrEnd(_ function: StaticString = #function) -> Bool {
    Explorer.current?.wait(function, gate: UnsafePointer(word), mayEnd: true) ?? false
  }
}
