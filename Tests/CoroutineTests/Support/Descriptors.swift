@testable import Coroutine

/// Whether a coroutine waits for a descriptor by `co_untilReadable`.
func isWaitedFor(_ number: Int32) -> Bool { DescriptorTable.of(number).isWaitedFor(number) }
