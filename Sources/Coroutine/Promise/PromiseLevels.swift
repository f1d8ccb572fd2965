internal import CCoroutineRuntime
import Synchronization

// Followers skip levels. In a loop by recursion, each handler returns the promise of the next round:
//
//   func poll() -> Promise<Int> { Promise.after(.seconds(1)).then { poll() } }
//
// Each round's promise follows that of the next round, and settles when that does. The program has the first one only,
// and would keep one promise for each round without this file.
//
//   first --> Q --> R          becomes          first --> R
//
// A promise Q is taken out if
//   a. it is pending, locked in, has no handler to run, and waits for R by its own waiter only;
//   b. one promise waits for it, by its own waiter, and copies its outcome;
//   c. nothing refers to it but the queue of R, and the thread that runs Q's handler, if that is the caller.
// Then no code can tell that Q has gone: nothing can settle it but R and a cancellation that comes from the waiting
// promise, and both take the same way without it.
//
// When. A thread that has run a handler looks at the handler's promise, then at the promises upstream of the one that
// is left. One that has called `follow` looks at the promise that waits for the follower: in a loop `p.follow(poll())`,
// the handler of the round before has been released by then. So of a follower and its upstream, the one that begins to
// wait last finds the other. (If another thread is about to give up its reference to an upstream, that level stays
// until the end: c.)
//
// Locks. Under the graph lock (PromiseGraph.swift) no other thread makes or takes out the edges, only promises settle.
// So the two edges move while the locks of all three promises are held, in their order: the follower's, Q's, R's. A
// promise that settles takes the waiters out of its queue under its own lock: before, and then Q is no candidate any
// more, or after. The follower's address comes from Q's queue, so it is retained under Q's lock. All references are
// given up after all locks: the queue's reference to Q is its last one, and Q's deinit waits for the end of the walk.

/// References that are given up after all locks.
private struct Released {
  let memory: UnsafeMutableBufferPointer<Unmanaged<AnyPromise>>
  private(set) var count = 0

  init(memory: UnsafeMutableBufferPointer<Unmanaged<AnyPromise>>) { self.memory = memory }

  /// Whether there is room for what a step gives up: two references.
  var hasRoom: Bool { count + 2 <= memory.count }

  mutating func append(_ reference: Unmanaged<AnyPromise>) {
    memory.initializeElement(at: count, to: reference)
    count += 1
  }
}

extension AnyPromise {
  /// Takes out the levels at the promise whose handler the caller has run.
  ///
  /// Called with the caller's reference to it, which must be the only one of the caller's.
  static func skipLevels(_ reference: Unmanaged<AnyPromise>) {
    let promise = PromiseRef(at: reference.toOpaque())
    guard promise.isFollower else { return }
    // On the stack: nothing is allocated under a spin lock. A loop adds a level a round, so more than these are rare;
    // they are left to the next round.
    withUnsafeTemporaryAllocation(of: Unmanaged<AnyPromise>.self, capacity: 64) { memory in
      var released = Released(memory: memory)
      PromiseGraph.lock.pointee.lock()
      var last = promise.skip(references: 2, &released) ?? promise
      while released.hasRoom, let upstream = last.followed, let follower = upstream.skip(references: 1, &released) {
        last = follower
      }
      PromiseGraph.lock.pointee.unlock()
      for index in 0..<released.count { memory[index].release() }
    }
  }
}

extension AnyPromise {
  /// Takes out the level above this promise, which has begun to follow another one.
  @usableFromInline
  final func skipFollower() {
    PromiseGraph.lock.pointee.lock()
    let follower = ref.retainedFollower
    withUnsafeTemporaryAllocation(of: Unmanaged<AnyPromise>.self, capacity: 2) { memory in
      var released = Released(memory: memory)
      // The other reference is that of this function.
      _ = follower?.skip(references: 2, &released)
      PromiseGraph.lock.pointee.unlock()
      for index in 0..<released.count { memory[index].release() }
    }
    follower?.object.release()
  }
}

extension PromiseRef {
  /// The promise that waits for this one and copies its outcome, if nothing else waits; with a reference.
  fileprivate var retainedFollower: PromiseRef? {
    lock()
    defer { unlock() }
    guard let follower = onlyFollower else { return nil }
    _ = follower.object.retain()
    return follower
  }

  fileprivate init(at address: UnsafeMutableRawPointer) { self.address = address }

  private func lock() { completion.known.lock.lock() }
  private func unlock() { completion.known.lock.unlock() }

  /// Whether the promise waits for another one, which alone will settle it.
  fileprivate var isFollower: Bool {
    lock()
    defer { unlock() }
    return upstreamAsFollower != nil
  }

  /// The promise that this one follows.
  ///
  /// Called under the graph lock, so it is in memory until that is left.
  fileprivate var followed: PromiseRef? {
    lock()
    defer { unlock() }
    return upstreamAsFollower
  }

  /// The same, under the promise's lock.
  private var upstreamAsFollower: PromiseRef? {
    guard !completion.known.isSettled, node.pointee.phase == .waiting, node.pointee.kind.isEmpty,
      !node.pointee.isPassive, case .none = node.pointee.upstreams
    else { return nil }
    return node.pointee.upstream
  }

  /// The upstream of a promise that may be taken out; called under its lock.
  private func upstreamIfUnneeded(_ references: Int) -> PromiseRef? {
    guard let upstream = upstreamAsFollower, !node.pointee.keepsUpstream, case .none = node.pointee.onCancel,
      isLocked, cco_has_references(address, references)
    else { return nil }
    return upstream
  }

  /// The only waiter, if it is that of a promise that copies the outcome; called under the lock.
  private var onlyFollower: PromiseRef? {
    guard let waiter = completion.pointee.waiters.first, waiter.pointee.next == nil, waiter.pointee.job == nil,
      waiter.pointee.notify != nil, waiter.pointee.index == -1, !waiter.pointee.isUnowned,
      let follower = waiter.pointee.context
    else { return nil }
    return PromiseRef(at: follower)
  }

  private var isLocked: Bool { object._withUnsafeGuaranteedRef { $0.isLocked } }

  /// Takes the promise out, and returns the promise that waits for its upstream now; nil if it has to stay.
  ///
  /// Called under the graph lock. `references` is the number of those that the head of this file names.
  fileprivate func skip(references: Int, _ released: inout Released) -> PromiseRef? {
    lock()
    let candidate = upstreamIfUnneeded(references) == nil ? nil : onlyFollower
    // Kept beyond this lock: the promise that it waits for may settle.
    if let candidate { _ = candidate.object.retain() }
    unlock()
    guard let follower = candidate else { return nil }
    released.append(follower.object)
    follower.lock()
    defer { follower.unlock() }
    guard follower.upstreamAsFollower == self else { return nil }
    lock()
    defer { unlock() }
    guard let upstream = upstreamIfUnneeded(references), onlyFollower == follower else { return nil }
    upstream.lock()
    defer { upstream.unlock() }
    // Otherwise the upstream settles, and will tell this promise.
    guard waiter.pointee.isLinked else { return nil }
    completion.pointee.waiters.remove(follower.waiter)
    upstream.completion.pointee.waiters.remove(waiter)
    upstream.completion.pointee.waiters.append(follower.waiter)
    node.pointee.upstream = nil
    follower.node.pointee.upstream = upstream
    released.append(object)
    return follower
  }
}
