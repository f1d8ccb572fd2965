internal import CCoroutine

/// Settles one promise after another where settling one settles the next: a chain of any length in constant stack.
///
/// The outermost settle on a thread leaves the address of its list in the thread's words; those within add to it and return.
/// Nothing in here suspends, so it stays one thread.
enum Settling {
  private final class Pending {
    var actions: [() -> Void] = []
  }

  static func run(_ settle: @escaping () -> Void) {
    if let words = cco_thread().pointee.settling {
      Unmanaged<Pending>.fromOpaque(words)._withUnsafeGuaranteedRef { $0.actions.append(settle) }
      return
    }
    let pending = Pending()
    cco_thread().pointee.settling = Unmanaged.passUnretained(pending).toOpaque()
    settle()
    while !pending.actions.isEmpty {
      let batch = pending.actions
      pending.actions = []
      for action in batch { action() }
    }
    cco_thread().pointee.settling = nil
    withExtendedLifetime(pending) {}
  }
}
