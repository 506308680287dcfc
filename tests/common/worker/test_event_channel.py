import asyncio
import threading

from common.worker.event_channel import EventChannel


async def test_events_arrive_in_order_on_the_loop_in_one_call_a_step() -> None:
    channel: EventChannel[int] = EventChannel(asyncio.get_running_loop())
    heard: list[list[int]] = []
    threads: set[int] = set()
    done = asyncio.Event()

    def listen(events: list[int]) -> None:
        heard.append(events)
        threads.add(threading.get_ident())
        if events == [9]:
            done.set()

    channel.listen(listen)

    def engine() -> None:
        for step in range(3):
            channel.put([step, step + 10])
        channel.put([])
        channel.put([9])

    thread = threading.Thread(target=engine)
    thread.start()
    await asyncio.wait_for(done.wait(), 5)
    thread.join()
    assert heard == [[0, 10], [1, 11], [2, 12], [9]]
    assert threads == {threading.get_ident()}


def test_a_closed_loop_swallows_what_comes_late() -> None:
    loop = asyncio.new_event_loop()
    channel: EventChannel[int] = EventChannel(loop)
    loop.close()
    channel.put([1])
