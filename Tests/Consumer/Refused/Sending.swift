// A value that is not Sendable goes from its sender to one receiver, and the sender cannot use it any more.
// scripts/consumer compiles this file and compares: the compiler refuses every line that ends in `// refused`, and no
// other.
import Coroutine

final class Parcel {
  var content = 0
}

func sendsThroughChannels(_ channel: Channel<Parcel>, _ next: Channel<Parcel>, mine: Parcel) throws {
  let parcel = Parcel()
  parcel.content = 1
  try channel.send(parcel)
  _ = channel.trySend(Parcel())
  while let parcel = try channel.receive() { try next.send(parcel) }
  while let parcel = try channel.receive() { co_launch { parcel.content += 1 } }
  try channel.forEach { parcel in try next.send(parcel) }
  if case .received(let parcel) = channel.tryReceive() { try next.send(parcel) }
  let all = try channel.receiveAll()
  co_launch { for parcel in all { parcel.content += 1 } }
  try co_select { channel.onReceive { parcel in if let parcel { try next.send(parcel) } } }

  let kept = Parcel()
  try channel.send(kept)  // refused
  kept.content += 1
  let offered = Parcel()
  _ = channel.trySend(offered)  // refused
  offered.content += 1
  try channel.send(mine)  // refused
  let received = try channel.receive()
  try next.send(received!)  // refused
  received?.content += 1
}

func sendsInAsyncCode(_ channel: Channel<Parcel>, _ next: Channel<Parcel>) async throws {
  for try await parcel in channel { _ = next.trySend(parcel) }
}

struct Delivery {
  let parcel: Parcel
  let reply: Reply<Parcel>
}

func tellsActors(_ actor: ActorRef<Delivery>) throws {
  let parcel = try actor.ask { Delivery(parcel: Parcel(), reply: $0) }
  co_launch { parcel.content += 1 }
  let kept = Parcel()
  _ = try actor.ask { Delivery(parcel: kept, reply: $0) }  // refused
  kept.content += 1
}

func handles(_ mailbox: Mailbox<Delivery>) throws {
  while let delivery = try mailbox.receive() { try mailbox.stash(delivery) }
  while let delivery = try mailbox.receive() {
    delivery.reply(delivery.parcel)  // refused
    delivery.parcel.content += 1
  }
}
