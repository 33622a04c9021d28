// Changes are drawn once a frame, however many there are: five thousand chunks must not mean five thousand renders.
const waiting = new Map<unknown, () => void>();
let isScheduled = false;

export function onNextFrame(key: unknown, work: () => void): void {
  waiting.set(key, work);
  if (isScheduled) return;
  isScheduled = true;
  afterFrame(run);
}

function run(): void {
  isScheduled = false;
  const works = [...waiting.values()];
  waiting.clear();
  for (const work of works) work();
}

/** A frame of the browser; in a tab that is not shown there are none, so a timer does as well. */
export function afterFrame(work: () => void): void {
  let isDone = false;
  const once = (): void => {
    if (isDone) return;
    isDone = true;
    work();
  };
  requestAnimationFrame(once);
  setTimeout(once, 200);
}
