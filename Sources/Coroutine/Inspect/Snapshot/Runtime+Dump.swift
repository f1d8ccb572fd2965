extension CoroutineRuntime {
  /// The forms of a dump for people.
  public struct DumpDetail: Sendable, Hashable {
    enum Kind { case list, stacks }

    let kind: Kind

    /// One line for each coroutine, as ``CoroutineRuntime/dump()`` returns it.
    public static var list: DumpDetail { DumpDetail(kind: .list) }
    /// Groups of coroutines with equal stacks.
    public static var stacks: DumpDetail { DumpDetail(kind: .stacks) }
  }

  /// Describes every live coroutine, as text for people.
  ///
  /// `.stacks` makes one group of the coroutines that wait in the same call for the same kind of thing, and shows the
  /// largest group first: how many they are, what they wait for, the longest and the median time, where they were
  /// launched, one of them, and the functions on their stacks, the innermost first. What this library itself does there
  /// is left out, except for the call that waits.
  ///
  /// Never suspends; any thread, even while queues are stuck. It stops nothing (``snapshot(stacks:)``). The first call
  /// with `.stacks` reads symbol tables (``frames(at:)``). Names of users, and those of functions, are escaped, so that
  /// none can forge a line.
  public static func dump(_ detail: DumpDetail) -> String {
    switch detail.kind {
    case .list: dump()
    case .stacks: StackDump.text()
    }
  }
}
