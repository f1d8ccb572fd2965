internal import CCoroutine
import Synchronization

// The graph of promises that wait for one another: its edges, the walks through it, and why no walk uses a promise that
// was freed.
//
// Edges. An edge leads from a promise to one that it waits for, its upstream. It consists of a waiter in the upstream's
// queue, and of the way back:
//
//   edge of                                           waiter               way back
//   a link, a follower, a handler's returned promise  the promise's own    `upstream`
//   a combinator to each member; a link that follows  one in `Members`     the member's entry in `Members`
//
// Walks. A walk goes from a promise along the ways back, over any number of edges:
//   - it takes edges out: of a promise that is cancelled, that settles while it still waits, or that nothing refers to
//     any more (Promise+Cancel.swift, Promise+Passive.swift);
//   - it searches: for a cycle that a new edge would close, or for a handler that needs the calling thread
//     (Promise+Follow.swift, Promise+Wait.swift).
//
// Locks, in the order of taking. None is taken the other way round.
//   1  PromiseGraph.lock   held by a walk from its beginning to its end, and while an edge is made that starts at a
//                          promise which other threads know. So walks see a graph in which no other thread makes such
//                          edges or takes edges out, except that promises settle.
//   2  Members.lock        the entries of one combinator, and the collecting of outcomes (PromiseMembers.swift).
//   3  a completion's lock the outcome of one promise, its queue, `upstream`, and the other fields of `PromiseNode`.
//                          A walk holds one at a time. Under it nothing is allocated or released.
// The first two are ThreadLocks, because their holders allocate, and because a walk has no bound. Under none of the
// three foreign code runs, and no promise is released.
//
// What takes no graph lock: an edge from a new promise, which closes no cycle, and settling. A promise that settles
// takes the waiters out of its queue under its own lock. Then each waiting promise clears the way back, under its own
// lock (upstreamSettled, memberSettled). Only a promise that settles while it still has edges begins a walk.
//
// Why no walk uses a freed promise. A waiting promise does not own its upstream. A walk W reads the way back from P to
// U under P's lock (2 or 3), and uses U until it leaves the graph lock. U's deinit ends with a read of the graph lock
// (`letWalksEnd`), if an edge has ever led to U: if the lock is taken, the deinit waits until it is free. `wasAwaited`
// says so, and is set before the way back is. To show: the read happens after W took the graph lock, or after W left
// it. Before U is freed, the way back is cleared, by one of these:
//   a. The settling thread of U clears it, under P's lock, and has a reference to U. W has read it before, under the
//      same lock. So W's taking of the graph lock happens before the clearing, which happens before U's deinit. The
//      same if U is settled already, and the thread that makes the edge tells P.
//   b. U is in its deinit, and rejects its waiters with `abandoned`: as a.
//   c. A walk clears it: W or an earlier one, whose end happens before W. Let it be W. If W finds the waiter taken out
//      of U's queue, then U's settling thread will take P's lock to tell P, after W: as a. Otherwise W takes the waiter
//      out under U's lock. Then U's settling, or U's deinit if U is pending, takes U's lock after W: it would have
//      taken the waiter out otherwise. The deinit takes it because the promise was waited for. If U is not joined yet,
//      the thread that would join it has a reference, and finds the member's entry taken out, under `Members.lock`,
//      after W.
//   d. P is passive and in its deinit, so that the settling thread cannot tell it. A passive promise has a reference to
//      the memory of each upstream (`cco_retain_memory`) from the linking until the edge is gone.
// So the read costs a promise that was waited for one load, and settling costs no shared write.
//
// References. The last release of a promise under a lock would run its deinit there. Swift may retain and release an
// object whenever a method of it is called. So walks know promises by their addresses alone (`PromiseRef`), and use
// fields that lie at fixed places in them. What a walk has to release, post or call, it collects (`Walk`), and does
// after it has left the graph lock.

enum PromiseGraph {
  /// Held by walks, and while an edge is made from a promise that other threads know.
  ///
  /// Its word is C's, which frees it in a forked child: otherwise a walk of a thread that has stayed in the parent
  /// would make every promise of the child unusable. Between its steps a walk leaves each promise as it may be.
  static var lock: UnsafeMutablePointer<ThreadLock> {
    @inline(__always) get { UnsafeMutableRawPointer(cco_promise_lock()).assumingMemoryBound(to: ThreadLock.self) }
  }

  /// Waits for the end of a walk that may use the caller, a promise at the end of its deinit.
  @inline(__always)
  static func letWalksEnd() { lock.pointee.waitWhileTaken() }

  /// Whether `isSought` accepts a promise on the way upstream from `start`.
  ///
  /// Called under the graph lock. The caller releases `held` after it has left the lock: a run that ends meanwhile
  /// would be released here otherwise, and with it what its body has captured.
  static func find(from start: PromiseRef, holding held: inout [Upstreams], _ isSought: (PromiseRef) -> Bool) -> Bool {
    // A second visit adds nothing, and a graph could cause very many.
    var (open, seen): ([PromiseRef], Set<PromiseRef>) = ([start], [])
    while let promise = open.popLast() {
      guard seen.insert(promise).inserted else { continue }
      if isSought(promise) { return true }
      promise.completion.lock()
      let (upstream, upstreams) = (promise.node.pointee.upstream, promise.node.pointee.upstreams)
      promise.completion.unlock()
      if let upstream { open.append(upstream) }
      if let upstreams {
        held.append(upstreams)
        open += upstreams.attached()
      }
    }
    return false
  }
}

/// What a promise waits for otherwise than by its own waiter.
///
/// These are the members of a combinator, the member of a link that follows, or the steps of a run. They are one field
/// of a promise, because each reference costs the deinit of every promise a call.
class Upstreams: @unchecked Sendable {
  // Sound because it has no state.
  init() {}

  /// Whether edges lead to some of them.
  var hasAttached: Bool { false }

  /// The promises to which edges lead.
  func attached() -> [PromiseRef] { [] }

  /// Takes the edges out: calls `leave` for each promise to which an edge led, with the edge's waiter.
  ///
  /// `isUnselected`: whether the promise is cancelled if it has no other waiter.
  func takeAttached(_ leave: (PromiseRef, UnsafeMutablePointer<Waiter>, _ isUnselected: Bool) -> Void) {}

  /// The run that has the steps.
  var run: Run? { nil }
}

/// The part of a promise that walks use.
///
/// It is used through its address only. The completion's lock covers it, except the fields that are set before another
/// thread knows the promise.
struct PromiseNode: ~Copyable {
  /// ThreadSanitizer records an inout access to any field at the address of the struct.
  let unused: UInt = 0
  /// The promise that this one waits for by its own waiter.
  var upstream: PromiseRef?
  /// The other promises that this one waits for: its members (constant once set), or the steps of a run (until it
  /// settles).
  var upstreams: Upstreams?
  var onCancel: (@Sendable () -> Void)?
  /// Runs the handler, unless `ordered` does; alive while `hold` is not `none`, or for ever if it is a worker's.
  ///
  /// If the promise has a run, the scheduler of the coroutine, which is alive as long as that.
  var scheduler: Unmanaged<Scheduler>?
  var ordered: OrderedHandlers?
  var kind = HandlerKind(rawValue: 0)
  var phase = AnyPromise.Phase.free
  /// Whether a cancellation of this promise goes no further upstream.
  var keepsUpstream = false
  /// Whether the promise is of no use once nothing refers to it.
  var isPassive = false
  /// Whether the promise, which is passive, owns a reference to itself.
  var holdsItself = false
  /// Whether nothing refers to the promise, which is passive, and it leaves its upstreams for that reason.
  // Not shared: it is set when no call can come any more.
  let isUnused = Atomic(false)
  /// Whether `cancel` settled the promise: a resumer that comes later is then not reported.
  // Not shared: a cancellation depends on every other step.
  let wasCancelled = Atomic(false)

  // A part of the init of each promise.
  @inline(__always) init() {}
}

/// The address of a promise.
///
/// It owns nothing, and its methods retain nothing.
struct PromiseRef: Hashable {
  let address: UnsafeMutableRawPointer

  init(_ promise: AnyPromise) { address = Unmanaged.passUnretained(promise).toOpaque() }

  var object: Unmanaged<AnyPromise> { .fromOpaque(address) }
  var completion: CompletionRef { property(at: 0) }
  var waiter: UnsafeMutablePointer<Waiter> { property(at: AnyPromise.waiterOffset) }
  var node: UnsafeMutablePointer<PromiseNode> { property(at: AnyPromise.nodeOffset) }

  private func property<Value: ~Copyable>(at offset: Int) -> UnsafeMutablePointer<Value> {
    address.advanced(by: objectHeader + offset).assumingMemoryBound(to: Value.self)
  }

  /// Whether cancelling the promise stops work.
  ///
  /// Called under its lock.
  var hasWorkToCancel: Bool {
    // Not `!= nil`: in debug builds that wraps the closure in another one, which is an allocation.
    if case .some = node.pointee.onCancel { return true }
    return node.pointee.upstream != nil || node.pointee.upstreams != nil || node.pointee.phase != .free
  }

  /// Whether a promise or a callback waits for this one.
  ///
  /// Called under the lock. It skips the coroutines that wait before them.
  var hasDependents: Bool { completion.pointee.waiters.first { $0.pointee.job == nil } != nil }
}
