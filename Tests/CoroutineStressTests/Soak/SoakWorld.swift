import Coroutine
import Dispatch
import Glibc
import Synchronization

/// A value under a lock that ThreadSanitizer knows.
final class SoakGuarded<Value>: @unchecked Sendable {
  // Sound because `value` is accessed with the mutex held only.
  private var value: Value
  private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)

  init(_ value: Value) {
    self.value = value
    pthread_mutex_init(mutex, nil)
  }

  deinit {
    pthread_mutex_destroy(mutex)
    mutex.deallocate()
  }

  /// `body` must not suspend.
  func with<Result>(_ body: (inout Value) -> Result) -> Result {
    pthread_mutex_lock(mutex)
    defer { pthread_mutex_unlock(mutex) }
    return body(&value)
  }
}

/// The violations of a program, as sentences.
final class SoakFindings: Sendable {
  private let sentences = SoakGuarded<[String]>([])

  var all: [String] { sentences.with { $0 } }

  func add(_ sentence: @autoclosure () -> String) {
    let sentence = sentence()
    sentences.with { if $0.count < 20 { $0.append(sentence) } }
  }

  func expect(_ isTrue: Bool, _ sentence: @autoclosure () -> String) {
    if !isTrue { add(sentence()) }
  }
}

/// A value that is sent; it is checked when it is released.
final class SoakToken: Sendable {
  /// The number of times that it must have been received at the end.
  enum Duty: Int { case atMostOnce, once, never }

  private let duty = Atomic(Duty.atMostOnce.rawValue)
  private let received = Atomic(0)
  private let undelivered = Atomic(0)
  private let findings: SoakFindings
  private let census: Census

  init(_ findings: SoakFindings, _ census: Census) {
    (self.findings, self.census) = (findings, census)
    census.change()
  }

  func mustArrive(_ duty: Duty) { self.duty.store(duty.rawValue, ordering: .relaxed) }
  func receive() { received.wrappingAdd(1, ordering: .relaxed) }
  func drop() { undelivered.wrappingAdd(1, ordering: .relaxed) }

  deinit {
    let (taken, dropped) = (received.load(ordering: .relaxed), undelivered.load(ordering: .relaxed))
    let duty = Duty(rawValue: self.duty.load(ordering: .relaxed)) ?? .once
    let isRight =
      switch duty {
      case .atMostOnce: taken + dropped <= 1
      case .once: taken + dropped == 1
      case .never: taken + dropped == 0
      }
    findings.expect(
      isRight,
      "a value that must arrive \(duty) was received \(taken) times and undelivered \(dropped) times"
    )
    census.change(by: -1)
  }
}

/// The activity of a flow, for the conductor.
enum SoakWait: Sendable {
  case running
  /// A wait that ends by itself: a timer, a thread, a Task.
  case outside(StaticString)
  /// A wait for another flow; the closure returns whether it could end now. It is called when no flow runs.
  case flows(StaticString, @Sendable () -> Bool)
  case over
}

/// One coroutine of a program, or one piece of async code that a coroutine awaits.
final class SoakFlowState: Sendable {
  let number: Int
  let wait = SoakGuarded(SoakWait.running)
  let job = SoakGuarded<AnyJob?>(nil)
  private let ends = Atomic(0)
  private let steps = Atomic(0)

  init(_ number: Int) { self.number = number }

  var stepCount: Int { steps.load(ordering: .relaxed) }
  var endCount: Int { ends.load(ordering: .acquiring) }
  func step() { steps.wrappingAdd(1, ordering: .relaxed) }
  func enter(_ wait: SoakWait) { self.wait.with { $0 = wait } }
  func leave() { wait.with { $0 = .running } }

  func end() {
    ends.wrappingAdd(1, ordering: .acquiringAndReleasing)
    wait.with { $0 = .over }
  }

  var isIdle: Bool {
    wait.with {
      switch $0 {
      case .flows, .over: true
      case .running, .outside: false
      }
    }
  }
}

/// A plain counter guarded by a lock under test: ThreadSanitizer and the sum show a failure of the lock.
final class SoakCounter: @unchecked Sendable {
  // Sound because the lock under test guards it.
  private var plain = 0
  private let exact = Atomic(0)
  private let holders = Atomic(0)

  var isHeld: Bool { holders.load(ordering: .acquiring) > 0 }
  var isExact: Bool { plain == exact.load(ordering: .acquiring) }

  /// Returns the number of current holders.
  func enter() -> Int { holders.wrappingAdd(1, ordering: .acquiringAndReleasing).newValue }
  func leave() { holders.wrappingSubtract(1, ordering: .acquiringAndReleasing) }

  func change() {
    plain += 1
    exact.wrappingAdd(1, ordering: .acquiringAndReleasing)
  }

  func read() -> Int { plain }
}

/// A channel with the facts that the conductor needs.
struct SoakChannel: Sendable {
  let channel: Channel<SoakToken>
  /// The flows inside a plain send or receive, or in a select with such a case.
  let senders = Census()
  let receivers = Census()
  let selectSenders = Census()
  let selectReceivers = Census()
  let room: Int

  init(_ capacity: Channel<SoakToken>.Capacity) {
    channel = Channel(capacity) { $0.drop() }
    room = capacity.waits ? capacity.limit : .max
  }

  var hasValue: Bool { channel.isClosed || channel.count > 0 }
  var hasRoom: Bool { channel.isClosed || channel.count < room }
  var canReceive: Bool { hasValue || senders.now + selectSenders.now > 0 }
  var canSend: Bool { hasRoom || receivers.now + selectReceivers.now > 0 }
}

struct SoakSemaphore: Sendable {
  let semaphore: FairSemaphore
  let permits: Int
  let taken = Census()
  /// The number of permits that each waiter wants.
  private let wanted = SoakGuarded<[Int]>([])

  init(_ permits: Int) { (semaphore, self.permits) = (FairSemaphore(permits), permits) }

  func want(_ count: Int) { wanted.with { $0.append(count) } }
  func wantNoMore(_ count: Int) {
    wanted.with { wanted in
      if let index = wanted.firstIndex(of: count) { wanted.remove(at: index) }
    }
  }

  /// Whether any waiter could get its permits.
  var canTake: Bool { wanted.with { $0.max() ?? 0 } <= permits - taken.now }
}

struct SoakSignal: Sendable {
  let condition: Condition
  let mutex: Int
  /// Changed under the mutex.
  let tokens = Census()
}

struct SoakActor: Sendable {
  let ref: ActorRef<SoakMessage>
  let flow: SoakFlowState
}

/// The objects of one program and their counters.
final class SoakWorld: Sendable {
  let program: SoakProgram
  let findings = SoakFindings()
  let tokens = Census()
  let deferred = Census()
  let handlers = Census()
  /// Identifies the queue that the code runs on.
  static let queueKey = DispatchSpecificKey<Int>()
  let queues = (0..<SoakProgram.queues).map { index in
    let queue = DispatchQueue(label: "soak.\(index)")
    queue.setSpecific(key: queueKey, value: index)
    return queue
  }
  let queueIsBusy = (0..<SoakProgram.queues).map { _ in Census() }
  let channels: [SoakChannel]
  let mutexes = (0..<SoakProgram.mutexes).map { _ in FairMutex() }
  let mutexCounters = (0..<SoakProgram.mutexes).map { _ in SoakCounter() }
  let semaphores: [SoakSemaphore]
  let readWriteLock = FairReadWriteLock()
  let written = SoakCounter()
  let readers = Census()
  let writersWaiting = Census()
  let signals: [SoakSignal]
  let once = Once<Int>()
  let onceRuns = Census()
  let flights = SingleFlight<Int, Int>()
  let promises: [Promise<Int>]
  let flows = SoakGuarded<[SoakFlowState]>([])
  let rootJobs = SoakGuarded<[Job<Int>]>([])
  let actors = SoakGuarded<[SoakActor]>([])
  private let flowCount = Atomic(0)

  init(_ program: SoakProgram) {
    self.program = program
    channels = program.channels.map { SoakChannel($0) }
    semaphores = program.semaphores.map { SoakSemaphore($0) }
    promises = (0..<program.promises).map { _ in Promise<Int>() }
    let mutexes = self.mutexes
    signals = (0..<SoakProgram.conditions).map { SoakSignal(condition: Condition(mutexes[$0]), mutex: $0) }
  }

  func token() -> SoakToken { SoakToken(findings, tokens) }

  func flow() -> SoakFlowState {
    let flow = SoakFlowState(flowCount.wrappingAdd(1, ordering: .relaxed).newValue)
    flows.with { $0.append(flow) }
    return flow
  }

  func root(_ index: Int) -> Job<Int>? { rootJobs.with { $0.isEmpty ? nil : $0[index % $0.count] } }
  func actor(_ index: Int) -> SoakActor? { actors.with { $0.isEmpty ? nil : $0[index % $0.count] } }
}
