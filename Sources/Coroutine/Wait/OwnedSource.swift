// Which coroutines can end a wait. The search for deadlocks (Inspect/Deadlocks.swift) asks for it, and nothing else.

/// A source that only known coroutines make ready, such as a lock that is held.
protocol OwnedSource: Inspectable {
  /// The numbers (OwnerNumber) of those of which one has to act before the wait of `job` can end; nil if others can end
  /// it as well, or if that is not known now.
  ///
  /// A cancellation, and a timer of the waiting coroutine, do not count. The caller holds the object and `job`, and no
  /// lock.
  func owners(awaitedBy job: JobRef) -> [UInt]?
}

/// A scope, as its children know it.
protocol EnclosingScope: AnyObject {
  /// The job that ends after the children; nil after the scope's end. Any thread.
  var joiner: AnyJob? { get }
  /// Whether a timer will cancel the children. Any thread.
  var isAboutToCancel: Bool { get }
}

/// The callback of a child's end that its scope has added.
protocol ScopeEntry: AnyObject {
  var enclosing: any EnclosingScope { get }
}

extension AnyJob {
  /// The scope that the job was launched in, if it has not ended.
  ///
  /// Any thread; the caller holds the job. The first callback of a child is that of its scope.
  final var enclosingAny: (any EnclosingScope)? {
    // Known: no other use changes the answer.
    completion.known.lock.withLock {
      let waiter = completion.pointee.waiters.first { $0.pointee.callbackIfAny is any ScopeEntry }
      return (waiter?.pointee.callbackIfAny as? any ScopeEntry)?.enclosing
    }
  }
}

extension AnyJob: OwnedSource {
  func owners(awaitedBy job: JobRef) -> [UInt]? { [record.ownerNumber] }
}
