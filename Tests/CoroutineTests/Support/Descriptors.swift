@testable import Coroutine

/// Whether a coroutine waits for a descriptor by `co_wait`.
func isWaitedFor(_ number: Int32) -> Bool { DescriptorTable.of(number).isWaitedFor(number) }
