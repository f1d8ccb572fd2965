// What two may read must be Sendable. scripts/consumer compiles this file and compares: the compiler refuses every line
// that ends in `// refused`, and no other.
import Coroutine

final class Parcel {}

func shares(_ channel: Channel<Parcel>, _ mailbox: Mailbox<Parcel>) throws {
  _ = Promise<Parcel>()  // refused
  _ = co_launch { Parcel() }  // refused
  _ = Once<Parcel>()  // refused
  _ = SingleFlight<Int, Parcel>()  // refused
  _ = ActorGroup<Parcel>()  // refused
  _ = channel.onSend(Parcel()) {}  // refused
  mailbox.schedule(Parcel(), every: .seconds(1))  // refused
  mailbox.schedule(Parcel(), after: .seconds(1))
}
