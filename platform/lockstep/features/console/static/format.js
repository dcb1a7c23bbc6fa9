// Figures as text.

const COUNT = new Intl.NumberFormat("en-US");
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

export function count(value) {
  return value === null || value === undefined ? "unknown" : COUNT.format(value);
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value >= 10 || value === 0 ? COUNT.format(Math.round(value)) : value.toFixed(1);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  const whole = Math.abs(seconds);
  const sign = seconds < 0 ? "-" : "";
  if (whole < 1) return `${sign}${Math.round(whole * 1000)} ms`;
  if (whole < 10) return `${sign}${whole.toFixed(1)} s`;
  if (whole < 120) return `${sign}${Math.round(whole)} s`;
  for (const [size, unit] of UNITS) {
    if (whole >= 2 * size) return `${sign}${COUNT.format(Math.round(whole / size))} ${unit}`;
  }
  return `${sign}${Math.round(whole)} s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "unknown";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let number = value;
  let unit = 0;
  while (number >= 1000 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${unit ? number.toFixed(1) : number} ${units[unit]}`;
}

export function moment(seconds) {
  return new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";
}

export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
