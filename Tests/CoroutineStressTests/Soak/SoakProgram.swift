import Coroutine

/// A random program as a value: the objects it uses, what each flow does, and what the conductor does from outside.
///
/// A program is made from its seed alone, so a seed replays the same program. The schedule is real: threads, timers and
/// the other processes of the machine decide it, so a failure may need several replays.
struct SoakProgram: Sendable {
  let seed: UInt64
  var channels: [Channel<SoakToken>.Capacity] = []
  var semaphores: [Int] = []
  var actors: [Channel<SoakMessage>.Capacity] = []
  var promises = 0
  /// Each is launched outside a coroutine, in this order; `join` and `cancel` use their indices.
  var roots: [SoakFlow] = []
  /// The conductor's actions, one for each time that no flow can continue by itself.
  var nudges: [SoakNudge] = []

  static let queues = 2
  static let mutexes = 2
  static let conditions = 2
}

/// The actions of one coroutine.
struct SoakFlow: Sendable {
  /// The queue; nil means that of the launch.
  var queue: Int?
  var start = StartMode.queued
  var hasSmallStack = false
  /// The number of failed steps that a cancelled flow ignores before it ends.
  var stubbornness = 0
  var actions: [SoakAction] = []
}

/// One step of a flow.
///
/// Numbers are indices of the program's objects, counts, or microseconds.
indirect enum SoakAction: Sendable {
  case yield
  case delay(Int)
  case hop(Int)
  case fail

  case send(Int)
  case receive(Int)
  case trySend(Int)
  case tryReceive(Int)
  case receiveAll(Int)
  case receiveMany(Int, Int)
  case iterate(Int, Int)
  case close(Int, withCause: Bool)
  case select([SoakCase], biased: Bool)

  case lock(Int, [SoakAction])
  case tryLock(Int)
  case acquire(Int, Int, [SoakAction])
  case read([SoakAction])
  case write([SoakAction])
  case waitForSignal(Int)
  case signal(Int)
  case once
  case share(Int)

  case await(Int)
  case settle(Int, SoakSettlement)
  case chain(Int)
  case combine(SoakCombination, [Int])
  case retry(Int)

  case launch(SoakFlow)
  case join(Int)
  case cancel(Int)
  case scope([SoakFlow], SoakScopeEnd)
  case supervise([SoakFlow])
  case gather(SoakCombination, [SoakFlow])
  case group([SoakFlow])
  case timeout(Int, [SoakAction])
  case shield([SoakAction])
  case bind([SoakAction])
  case loop(Int, [SoakAction])

  case generate(SoakSequence)
  case tell(Int)
  case ask(Int, timeout: Int?)
  case blocking(Int)
  case resumer(SoakResumer)
  case descriptor
  case async([SoakAsync])
}

enum SoakCase: Sendable {
  case receive(Int)
  case send(Int)
  case await(Int)
  case join(Int)
  case timeout(Int)
  case lock(Int)
  case acquire(Int)
  case otherwise
}

/// A step of async code that a flow awaits.
enum SoakAsync: Sendable {
  case yield
  case sleep(Int)
  case receive(Int)
  case await(Int)
  case job
}

enum SoakSettlement: CaseIterable, Sendable { case fulfill, reject, cancel }
enum SoakCombination: CaseIterable, Sendable { case all, allSettled, any, race }
enum SoakScopeEnd: CaseIterable, Sendable { case waits, cancels, fails }
enum SoakResumer: CaseIterable, Sendable { case now, later, fails, twice, dropped }

struct SoakSequence: Sendable {
  var count: Int
  var taken: Int
  var depth: Int
  var waits: Bool
  var closes: Bool
}

enum SoakNudge: Sendable {
  case send(Int)
  case receive(Int)
  case close(Int)
  case settle(Int, SoakSettlement)
  case signal(Int)
  case stop(Int)
  case cancelActor(Int)
  case cancel(Int)
}

enum SoakMessage: Sendable {
  case tell(SoakToken)
  case ask(Int, Reply<Int>)
}
