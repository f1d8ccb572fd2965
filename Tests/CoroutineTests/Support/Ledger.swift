import Coroutine
import Dispatch

/// An actor that lives on a queue.
actor Ledger {
  private let executor: CoroutineExecutor
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
  var balance = 0
  var isConsistent = true

  init(on queue: DispatchQueue) { executor = CoroutineExecutor(queue) }

  func add(_ amount: Int) -> Int {
    balance += amount
    return balance
  }

  func add(_ amount: Int, _ visit: @Sendable () -> Void) {
    visit()
    balance += amount
  }

  private(set) var notes: [Int] = []
  func note(_ number: Int) { notes.append(number) }

  func tag() -> String? { currentTag }
  func readConsistency() -> Bool { isConsistent }
}
